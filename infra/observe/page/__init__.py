"""`run.py view`: a page on this machine that shows runs, steps, groups and single rollouts.

It reads what lies in run folders, the trainer's journal and the metrics file, and nothing else: so
it works during a run, after it, and on a copy. It writes nothing and answers GET only.

    journal -> index (facts in memory, bodies at their positions) -> answers (JSON) -> assets
"""
