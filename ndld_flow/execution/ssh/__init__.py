"""Steps on targets: machines that are reached by OpenSSH."""
