"""Two captures side by side: read, aligned, and followed along their data flow. Pure: no Ray, no
framework."""
