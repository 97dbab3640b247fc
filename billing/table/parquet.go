package table

import (
	"context"
	"errors"

	"gpuledger/billing"
	"gpuledger/objstore"
)

func openParquet(ctx context.Context, store objstore.Store, file billing.File, opt Options) (source, error) {
	return nil, errors.New("parquet: not yet")
}
