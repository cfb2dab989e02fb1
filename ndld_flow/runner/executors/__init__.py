"""Where steps are computed: in this process, in worker processes, on other machines."""
