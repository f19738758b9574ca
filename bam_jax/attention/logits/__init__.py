"""The logits of attention: tokens, mask and scoring, computed tile by tile, and which tiles are needed."""
