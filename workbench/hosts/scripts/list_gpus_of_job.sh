# Prints the GPUs that Slurm gave to the job in which this runs, as CUDA_VISIBLE_DEVICES has them;
# nothing if it gave none; "all" if Slurm does not assign the GPUs of this node, or the words name
# parts of GPUs.

given=${CUDA_VISIBLE_DEVICES-unset}
case $given in
    NoDevFiles) exit 0 ;;
    *MIG-*) echo all; exit ;;
    unset) ;;
    *) printf '%s\n' "$given"; exit ;;
esac
scontrol show node "${SLURMD_NODENAME-}" 2>/dev/null | grep -q '^ *Gres=.*gpu' || echo all
exit 0
