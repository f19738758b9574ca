"""The logits of attention: tokens, mask and scoring, tile by tile, and which tiles matter."""
