"""Prepared folders: shards of tokenised documents."""
