"""How bytes look: chunks, messages, manifests. No I/O, nothing executed, nothing trusted.

The first three bytes say what follows, the fourth is the version of that format:

    SPC  a chunk, in uploads, streams and stores (wire/chunk.py)
    SPR  a stream record: chunks of one episode with who uploaded them (wire/record.py)
    SPS  a spooled chunk with its digest, on the client's disk (client/spool.py)
"""
