# Shell lines that print what the host's own environment says, in the form that `parse_allotment` parses.

echo "job=${PBS_JOBID:+PBS $PBS_JOBID}${SLURM_JOB_ID:+Slurm $SLURM_JOB_ID}${LSB_JOBID:+LSF $LSB_JOBID}"
echo "visible=${CUDA_VISIBLE_DEVICES-unset}"
