"""Class-conditional SN-GAN (Miyato et al. 2018; Miyato & Koyama 2018)."""
