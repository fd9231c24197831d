"""A run folder and the faults in; what was lost, repeated or unexplained out. Reads raw records
only, never by the code that wrote them, so that an error there is seen here."""
