"""Foreign spans become traces: which spans are steps, what they read and returned, and who followed whom.

concepts   what an attribute means, whatever convention it is written in
messages   the messages of model calls, in every convention
forest     the spans of one run as a tree, whatever was lost or exported twice
steps      which spans are steps, and what is folded into them
order      who followed whom by nesting and time
named      who followed whom by links, node names and static graphs
content    whose text a step read
edges      all this evidence together
build      the traces
"""
