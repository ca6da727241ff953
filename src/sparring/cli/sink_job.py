"""The file that spark-submit takes; its arguments are those of `spar sink`.

spark-submit --master spark://HOST:7077 --py-files sparring.zip src/sparring/cli/sink_job.py --config spar.toml
"""

import sys

if __name__ == "__main__":
    from sparring.cli import main

    sys.exit(main(["sink", "--spark", "submitted", *sys.argv[1:]]))
