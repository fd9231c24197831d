"""A task or a snapshot in; a finished rollout, a snapshot or the plain task out.

One state machine for every agent:

    PENDING -> GENERATING -> PROCESSING_TOOLS -> GENERATING ... -> TERMINATED
                    |    <-  INTERACTING  <-
                    +--------------------------------------------> TERMINATED
"""
