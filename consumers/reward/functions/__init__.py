"""Built-in reward functions, one a file: what the policy wrote in, a number out."""
