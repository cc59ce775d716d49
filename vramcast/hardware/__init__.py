"""The card and its software: cards, stacks, contexts, throughput."""
