// The TCP transport: a listener, and the mesh of authenticated connections of one view.
//
// Terms: address: "host:port", "[ipv6]:port"; handshake: what both ends prove to each other
//        before a connection counts, docs/protocol.md; job secret: known to the job's workers.
// Threads: a listener is used by one thread at a time; for the transport see kf/transport.h.
// Ownership: a listener owns its socket until connect_tcp has succeeded with it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kf/transport.h"
#include "kf/view.h"

namespace kf {

class TcpListener {
 public:
  // Binds and listens. `host` is a name or address of this machine, of either IP version;
  // port 0 lets the system choose. Throws Error{transport} with the address and the reason.
  TcpListener(const std::string& host, int port);
  ~TcpListener();
  TcpListener(TcpListener&& other) noexcept;
  TcpListener& operator=(TcpListener&&) = delete;

  const std::string& address() const noexcept { return address_; }  // as bound
  int port() const noexcept { return port_; }
  int fd() const noexcept { return fd_; }
  void close() noexcept;

 private:
  int fd_ = -1;
  int port_ = 0;
  std::string address_;
};

struct TcpOptions {
  View view;
  int rank = 0;
  std::string job_id;
  std::string job_secret;
  std::vector<std::string> addresses;  // by rank; this rank's own is not used
  Clock::time_point deadline;
  std::function<bool()> interrupt;  // asked from time to time; true gives up
  bool keep_listener = false;       // it will be used for another view
};

// Connects to every rank below this one and accepts every rank above it; whoever fails the
// handshake is dropped and disturbs nobody. Closes the listener when all are there, unless it
// is kept. Throws Error{usage} for a bad address or rank, Error{deadline} naming the ranks that
// are missing, Error{stale_view} if a peer is in a newer view, Error{transport} if a peer
// refuses this rank again and again, Error{aborted} when interrupted.
std::unique_ptr<Transport> connect_tcp(TcpListener& listener, const TcpOptions& options);

}  // namespace kf
