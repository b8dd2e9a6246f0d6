"""A script that imports itself by its name runs a second time, as a module."""
import sys

print("running as", __name__)
if __name__ == "__main__":
    import script

    print(script.__name__, script is sys.modules["__main__"], script.__doc__ == __doc__)
