"""`run.py monitor`: who is at work, what waits where, what is wrong and what to do about it.

    broker: events, sync --listener--> world --+--> scene --+--> findings, bottleneck --+
    broker: management API --poller------------+            |                           |
                                                            +--> screen | text | JSON <-+

Hears and asks, and changes nothing: no message is published or taken, nothing of the run declared.
"""
