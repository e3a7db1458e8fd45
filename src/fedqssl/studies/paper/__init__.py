"""The paper's tables and figures as data: which runs each needs, at three scales, and how finished runs are compared.

Sits above ``runs`` and below ``cli``. Every cell of a table is a normal run folder; tables are made from whatever is finished.
"""
