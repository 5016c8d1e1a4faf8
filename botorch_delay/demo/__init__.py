"""The demo: tune a classifier of images on real data with late, out-of-order results.

An evaluation cross-validates the classifier on half of scikit-learn's digits, and takes up to seven
times longer with some settings than with others. The other half is held out to judge the result.
``digits`` is what worker processes load, ``tuning`` the demo, and ``race`` compares methods.
"""
