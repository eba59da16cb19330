"""Simulated hosts: a driver, an nvidia-smi and inference engines made of files and real processes, without a GPU.

Nothing here is measured: it is a model whose constants come from vendor data and public measurements (each named
where it stands), made so that tuning it teaches what tuning the hardware would. Everything it yields is marked
simulated by whoever reads it. All modules but `host` run with a bare python3 >= 3.9 and the standard library.
"""
