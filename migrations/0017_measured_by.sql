-- Which collectives measured a network: "tcp", those of ranks on CPUs, or "nccl", those of ranks on GPUs.
ALTER TABLE network_links ADD COLUMN measured_by TEXT NOT NULL DEFAULT 'tcp';
