"""`python -m atlas`: the same as the `atlas` command."""

from atlas.app import main

if __name__ == "__main__":
    main()
