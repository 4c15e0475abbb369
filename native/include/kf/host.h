// The transport of a real job: shared memory between ranks of one host, TCP between hosts.
//
// Every pair of ranks is connected by TCP first (kf/tcp.h), authenticated; over that connection
// they find out whether they can share memory. Where they can, no data pass through the socket
// any more: it only shows when the peer is gone.
// Threads: see kf/transport.h.
// Ownership: the transport keeps `registered` alive.
#pragma once

#include <memory>
#include <string>

#include "kf/shared_memory.h"
#include "kf/tcp.h"
#include "kf/transport.h"

namespace kf {

struct HostOptions {
  bool share_memory = true;  // false: TCP with every peer
  std::string identity;      // of this machine; empty: what the kernel says
  bool attach = true;        // lend private memory where the system lets peers read it
  // Buffers that peers of this host may read in place; null: none.
  std::shared_ptr<const SharedMemory> registered;
};

struct HostConnection {
  std::unique_ptr<Transport> transport;  // its name is "shm", "tcp" or "shm+tcp"
  std::string warning;  // why memory is not shared with some rank of this host; else empty
};

// Throws as connect_tcp does.
HostConnection connect_host(TcpListener& listener, const TcpOptions& options,
                            const HostOptions& host = {});

}  // namespace kf
