"""SGLang, over HTTP: a server that the worker starts, or one that it is given."""
