"""The demo: a small model learns to use a calculator, from scratch, on two CPU cores.

In: a seed. Out: a model folder and two datasets (`prepare`), a recipe's plug-ins (`calls`, `tool`,
`reward`), and after the run a table and a chart. Everything here is reached by import path, like
a user's own code.
"""
