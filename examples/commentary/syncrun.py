"""One run, from start to end: Engine.run."""

from commentary import build_engine, build_request, make_parser, print_summary

arguments = make_parser(__doc__).parse_args()
result = build_engine(arguments.model).run_sync(build_request())
print_summary(result)
