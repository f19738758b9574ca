"""Text, tokenizers, tasks and the batches made of them."""
