"""Answers to the exercises, wrong and right, a module per lesson; the engine that checks them."""
