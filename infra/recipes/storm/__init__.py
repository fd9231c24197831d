"""The storm's recipe: a model of a few thousand random weights, many short rollouts, faults soon
noticed.

In: a seed. Out: a model folder and a dataset (`prepare`), the recipe's plug-ins (`calls`,
`reward`). Reached by import path, like a user's own code.
"""
