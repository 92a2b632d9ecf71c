"""ControlServers: the pass that makes, adopts and recovers them, and the loop that keeps claims.

``sight`` observes, ``tenure.plan.adoption`` decides, ``deeds`` does one step; ``pass_`` goes round until nothing is
left to do. ``adopting`` and ``recovery`` work in the background, one thing at a time for each server; ``keeper``
renews claims and outlives the Lease.
"""
