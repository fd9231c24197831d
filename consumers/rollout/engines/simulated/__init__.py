"""An engine without a model: lengths, speed and tokens as its profile says."""
