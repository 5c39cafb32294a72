#pragma once
#include <ostream>
#include <string_view>

#include "parallel/schedule/actions.h"

/// PyTorch's notation of pipeline schedules as comma-separated values (torch.distributed.pipelining,
/// compute_only): a row for each rank, in each cell an action such as 4B1 (stage 4, whole backward,
/// microbatch 1), or nothing where the rank is idle.
namespace nemocube {

/// Writes one row for each rank, all with the same number of cells. A column is a time step in which a rank
/// does at most one action, of any kind, as in PyTorch's own files. Errors: as simulate().
void write_schedule_csv(std::ostream& out, const Schedule& schedule);

/// Reads what write_schedule_csv and PyTorch write. Idle cells, spaces around cells, carriage
/// returns and empty lines at the end mean nothing, and PyTorch's communication actions
/// (1RECV_F0, 0SEND_F0, 0UNSHARD, 0REDUCE_GRAD and so on) are skipped: what is sent follows from
/// the actions. `source` names the text in messages.
///
/// Error naming source, row, column and cell for any other cell, and for numbers from 2^31. The order is not
/// checked: see check_schedule.
Schedule parse_schedule_csv(std::string_view text, std::string_view source);

}  // namespace nemocube
