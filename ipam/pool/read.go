package pool

import (
	"errors"

	"github.com/fairlead-cni/fairlead/api"
)

// Read checks an IPPool and says what it means. The error is a sentence for the
// administrator: it names the field and says what to write instead.
func Read(api.IPPool) (Pool, error) {
	return Pool{}, errors.New("IPPools are not read yet")
}
