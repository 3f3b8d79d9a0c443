"""A disk that can lose its power: a real ext4 in a file, which needs root.

The kernel is told to shut the file system down without another write, as its own tests
do (``EXT4_IOC_SHUTDOWN``): what is in the file then is what a disk holds after a cut.
Mounted again, the journal is replayed.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess

_SHUTDOWN = 0x8004587D
_WITHOUT_LOG = 2
_SIZE = "48M"
_PROGRAMS = ("mkfs.ext4", "mount", "umount", "losetup")


class Disk:
    """A disk with a file system."""

    def __init__(self, folder):
        self.folder = folder / "disk"
        self._empty, self._image = folder / "empty.img", folder / "disk.img"
        self._num_cut = 0
        self.folder.mkdir()

    def make(self):
        """Makes the file system of an empty disk."""
        if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
            raise FileNotFoundError(f"{', '.join(absent)} (apt-get install e2fsprogs)")
        self._empty.touch()
        os.truncate(self._empty, 48 * 2**20)
        # No inode table is written later, by a thread that a cut would hit.
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0", str(self._empty), _SIZE)

    def insert(self, options):
        """Mounts the empty disk, in place of another."""
        self.remove()
        shutil.copyfile(self._empty, self._image)
        self._mount(options)

    def cut(self):
        """Cuts the power: every later call on the file system fails."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _WITHOUT_LOG))
        finally:
            os.close(descriptor)

    def restore(self, options):
        """Mounts what the disk holds after a cut."""
        self._num_cut += 1
        held = self._image.with_name(f"cut-{self._num_cut}.img")
        shutil.copyfile(self._image, held)
        self.remove()
        self._image.unlink()
        held.rename(self._image)
        self._mount(options)

    def remove(self):
        """Unmounts it, also where a process still has a file open."""
        if os.path.ismount(self.folder):
            _run("umount", "--lazy", str(self.folder))

    def _mount(self, options):
        _run("mount", "-t", "ext4", "-o", f"loop,{options}", str(self._image),
             str(self.folder))  # fmt: skip


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{words[0]}: {(done.stderr or done.stdout).strip()}")


@contextlib.contextmanager
def mounted(folder):
    """Makes a disk, and removes it at the end of the block."""
    disk = Disk(folder)
    try:
        disk.make()
        disk.insert("defaults")
        disk.cut()  # which a kernel may not know
        yield disk
    finally:
        disk.remove()
