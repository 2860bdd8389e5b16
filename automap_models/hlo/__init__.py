"""A StableHLO module → instruction graph, the cost of its instructions, a profile."""
