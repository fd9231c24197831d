"""`run.py replay step`: steps of a run taken again from its folder, beside what was recorded."""
