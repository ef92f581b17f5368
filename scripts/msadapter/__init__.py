"""Releases of MSAdapter and MindTorch: installed, captured under, prechecked, and with a planted fault."""
