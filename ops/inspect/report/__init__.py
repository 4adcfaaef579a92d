"""`fedil report`: what a run's folder tells, as one page that needs nothing else to be looked at.

reading.py     a folder → a value; evidence.py and pseudo_labels.py add what needs the model, the data or the ledgers
drawing.py     a figure → inline SVG or a file; curves.py, evidence_plots.py and comparison_plots.py draw
markup.py      HTML in which every text is escaped; page.py, sections/ and comparison_page.py build with it
comparison.py  several runs: which differ by their seed only, and how far those spread
"""
