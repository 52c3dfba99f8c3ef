"""Write the episodes of a data set in the formats of other libraries.

A writer takes episodes as :meth:`echoic.OfflineDataset.episodes` yields them, one after the other.
"""
