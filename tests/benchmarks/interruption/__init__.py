"""What a weight update costs the rollouts in flight: `python -m tests.benchmarks interruption`.

A real worker process on a real broker, `IN_FLIGHT` rollouts of the demo's model in a real engine;
this side plays producer, trainer and reward worker.

    heard -> told -> stopped -> confirmed -> swapped -> first token
             the engine is told to end what it generates; the last stream has ended; the last
             snapshot is confirmed and acknowledged; the new weights serve; a token of theirs
"""
