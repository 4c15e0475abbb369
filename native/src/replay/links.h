// The links that connections cross: ports, then each rack's uplink and downlink.
#pragma once

#include <vector>

#include "replay/program.h"

namespace kf::replay {

class Links {
 public:
  explicit Links(const Program& program);

  const std::vector<double>& rates() const noexcept { return rates_; }  // bytes per second

  // The links that can limit a connection; those of infinite rate are left out.
  std::vector<int> path(const Connection& connection) const;
  // Those of background flows; host -1 is outside the cluster.
  std::vector<int> path(const BackgroundFlows& flows) const;

 private:
  std::vector<int> path(int src_host, int dst_host, int egress, int ingress) const;

  const Program& program_;
  std::vector<double> rates_;
  int racks_ = 0;
};

}  // namespace kf::replay
