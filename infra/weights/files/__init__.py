"""Where versions lie: a local folder, or anything that fsspec can address."""
