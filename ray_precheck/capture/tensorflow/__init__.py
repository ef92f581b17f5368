"""Captures of TensorFlow, by its own debugger: `dumping` runs in the script, `launch` runs the script."""
