# Public names, listed once: lazy_loader reads this file and loads each on first use.
from .images import DIGITS as DIGITS
from .images import IMAGENET as IMAGENET
from .images import UNCHANGED as UNCHANGED
from .images import Augmentation as Augmentation
from .images import Images as Images
from .sources import Examples as Examples
from .sources import open_source as open_source
from .sources import open_text as open_text
