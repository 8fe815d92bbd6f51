"""Prints what a wheel requires, one requirement a line, without torch and its kin and without extras."""
import re
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    text = wheel.read(metadata).decode()
for requirement in re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE):
    if "extra ==" not in requirement and not re.match(r"torch(audio|vision|codec)?\b", requirement):
        print(requirement)
