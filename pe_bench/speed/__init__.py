"""What encodings cost: time, tokens per second and memory of a pass at each length, relative to no encoding.

rows.py     what one measurement says, and the file that all are written to
passes.py   a pass: one window scored, or one training step, as `eval` and `train` do them
measure.py  how a pass is timed, in turns with the reference
bench.py    which passes are timed, and what each row says
table.py    the rows in words
picture.py  the rows as curves over length
"""
