"""Where NaN and infinity were born in one capture, over ranks and over steps. Pure: no Ray, no framework."""
