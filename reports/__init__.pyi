# Public names, listed once: lazy_loader reads this file and loads each on first use.
from . import plot as plot
from .exports.exports import print_summary as print_summary
from .page.build import build_report as build_report
from .page.build import write_report as write_report
from .view import View as View
from .view import series_of as series_of
from .view import view_store as view_store
