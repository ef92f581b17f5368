"""The reference: every API again in float64, on the CPU, through torch."""
