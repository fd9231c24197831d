"""What is wrong, from what is seen: pure functions, one per fault, each naming what to do."""
